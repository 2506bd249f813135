"""The node's record of grants, in SQLite, and refusals.

store.py has the transactions: book, bind, end and reap. grants.py are its values, layout.py its tables and
their checks, database.py and sqlite.py the connection, waiting.py bounds the wait for a lock.
cgroup_records.py keeps each grant on its cgroup, too, so that a lost ledger can be made anew. allocations.py
and pod_ledger.py have the shares of pods, quotas.py the quotas, events.py the history, refusal.py the reason
of a refusal, in one sentence.
"""
