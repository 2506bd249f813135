    # Of a removal that was begun, or of an earlier one.
    rm -f /usr/bin/xpu-container-runtime.kept /run/xpu/callers
    # Compiled on this machine, for its own Python; a start that comes meanwhile is only slower.
    if ! /usr/bin/python3 -IS /usr/lib/xpu-container-runtime/precompile.py; then
        echo "xpu-container-runtime: nothing could be compiled for $(/usr/bin/python3 --version 2>&1 || echo 'a missing python3');" >&2
        echo "  containers start all the same, more slowly; when it is mended: python3 -IS /usr/lib/xpu-container-runtime/precompile.py" >&2
    fi
    # Engines that know CDI devices read it (docs/how-to/cdi.md). Somebody else's file of that name stays, and is told.
    timeout 60 /usr/bin/xpu cdi generate > /dev/null || true
    # Its members may see what is so on this node (docs/concepts/security.md). It outlives the package: files may be the group's.
    if ! getent group xpu > /dev/null && ! groupadd --system xpu; then
        echo "xpu-container-runtime: there is no group xpu, whose members could use xpu ps without being root;" >&2
        echo "  to have it: groupadd --system xpu; systemctl try-restart xpu-agent" >&2
    fi
    # The agent of an earlier version, where one runs: containers have their caps meanwhile.
    if [ -d /run/systemd/system ]; then
        # Not without need: under systemd's cgroups it takes device rules from containers that an earlier version's hook has
        # started. Where the distribution has moved to another Python, before-install.sh has written nothing.
        known=/run/xpu-container-runtime.units
        if [ -e $known ] &&
            [ "$(cat $known)" != "$(cd /usr/lib/systemd/system && cksum xpu-agent.service xpu-inventory.service)" ]; then
            systemctl daemon-reload || true
        fi
        # No advice to reload for a file that has another time and the same content.
        SYSTEMD_LOG_LEVEL=err systemctl try-restart xpu-agent.service || true
        # At a first installation, where a driver was loaded before udev had our rule for it. Later nobody starts what
        # somebody has stopped.
        if [ -e $known ] && [ ! -s $known ] && { [ -e /sys/module/nvidia ] || [ -e /sys/module/amdgpu ]; }; then
            systemctl start --no-block xpu-inventory.service xpu-agent.service || true
        fi
        rm -f $known
    fi
