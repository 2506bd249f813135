"""What the node's devices and containers are and do now, for whoever shows it: commands, metrics, the page.

Nothing is drawn here, and nothing is changed. Commands and the agent are above; where it is served and how it
looks is theirs to know.
"""
