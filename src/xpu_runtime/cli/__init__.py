"""`xpu ...`: the commands, one file each; main.py finds them and makes errors lines.

kubernetes/ has the commands of `xpu kubernetes`, terminal/ the drawing. Common to several commands:
completion.py, device_marks.py (drain, reserve), reaping.py, unprivileged.py (for users other than root, by
the agent), removal.py (for the packages' scripts).
"""
