"""The record of who holds what on this node, in SQLite, and refusals.

store.py has the transactions: book, bind, end, and reap what has died. grants.py are its values, layout.py
its tables and their checks, database.py and sqlite.py the connection, waiting.py how long a lock is waited
for. survivors.py keeps each grant on its cgroup, too, so that a lost ledger is made anew. allocations.py and
pod_ledger.py are what pods have, quotas.py who has had enough, events.py what has happened, refusal.py why a
request is refused, in one sentence.
"""
