    # Record the present units, none at a first installation: systemd is reloaded only if they have changed afterwards.
    (cd /usr/lib/systemd/system && cksum xpu-agent.service xpu-inventory.service) \
        > /run/xpu-container-runtime.units 2>/dev/null || true
