"""What the node's devices and containers are and do now, for whoever shows it: commands, metrics, the page.

live.py takes a reading (reading.py) and device_state.py adds what is known of devices; exposition.py makes
Prometheus' text of it, overview.py what the page shows. names.py, containers.py and docker_api.py find a
container by its name; asking.py asks drivers with an end, samples.py for their samples. engine.py finds
engines' processes, agent_status.py asks the agent, node_metrics.py keeps a reading for scrapes. Nothing is
drawn here, and nothing is changed.
"""
