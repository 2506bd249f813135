"""What the host does while containers run: `xpu agent`.

policy.py decides who may use how much of a device's time, from what slices want (demand.py), device by
device (card.py); loop.py runs it and grants.py keeps the pages of all grants open. crosscheck.py compares
accounts with the driver's samples (comparison.py), and holds a container that uses more than its cap.
start_workers.py keeps the processes that do a container's start (worker.py at the top). journal.py passes
events on to systemd's journal. held_events.py enters such events once the ledger is free. beside.py runs
what is served by HTTP (http_server.py at the top): metrics_service.py (Prometheus), page.py (browsers),
history.py (its last hour), questions.py and collector.py (what is made when it is asked for); and reading.py
(commands of the group `xpu`). status.py tells commands how the agent does.
"""
