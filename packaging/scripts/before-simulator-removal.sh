    said=$(timeout 60 /usr/bin/xpu sim down) || echo "xpu-simulator: the simulated devices stay up until the next boot" >&2
    case $said in
        *"still used"*) echo "xpu-simulator: $said" >&2 ;;
    esac
    find /usr/lib/xpu-container-runtime/python/xpu_simulator -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
