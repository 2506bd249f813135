"""The generated parts of the pages, a module for each page; reference.py writes them."""
