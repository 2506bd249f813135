"""What a container gets of its grant: the plan, and the two ways to carry it out."""
