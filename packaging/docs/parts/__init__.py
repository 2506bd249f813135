"""What reference.py writes into the pages, a module for each."""
