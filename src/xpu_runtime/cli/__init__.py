"""`xpu ...`: the commands, one file each; main.py finds them and makes errors lines.

kubernetes/ has the commands of `xpu kubernetes`, terminal/ the drawing. Common to several commands:
completion.py, marking.py (drain, reserve), giving_back.py, as_member.py (for users other than root, by the
agent), removal.py (for the packages' scripts).
"""
