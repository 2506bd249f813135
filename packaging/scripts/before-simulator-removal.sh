    /usr/bin/xpu sim down > /dev/null || echo "xpu-simulator: the simulated devices stay up until the next boot" >&2
    find /usr/lib/xpu-container-runtime/python/xpu_simulator -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
