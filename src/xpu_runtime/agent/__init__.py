"""`xpu agent`: the host's part while containers run.

policy.py decides the shares of a device's time from the slices' demand (demand.py), device by device
(card.py); loop.py runs it and grants.py keeps the pages of all grants open. crosscheck.py compares accounts
with the driver's samples (comparison.py), and holds a container that uses more than its cap. start_workers.py
keeps the processes that do a container's start (worker.py at the top). journal.py passes events on to
systemd's journal. pending_events.py enters such events once the ledger is free. side_process.py runs the
services. metrics_service.py serves HTTP (http_server.py at the top): Prometheus, and browsers (page.py, with
history.py for its last hour). questions.py and collector.py make its answers on demand. command_service.py
answers commands of the group `xpu`. status.py tells commands the agent's state.
"""
