    # Leftovers of a removal, finished or not.
    rm -f /usr/bin/xpu-container-runtime.kept /run/xpu/callers
    # Compile for this machine's own Python; a container that starts meanwhile only starts more slowly.
    if ! /usr/bin/python3 -IS /usr/lib/xpu-container-runtime/precompile.py; then
        echo "xpu-container-runtime: nothing could be compiled for $(/usr/bin/python3 --version 2>&1 || echo 'a missing python3');" >&2
        echo "  containers start all the same, more slowly; when it is mended: python3 -IS /usr/lib/xpu-container-runtime/precompile.py" >&2
    fi
    # From before-install.sh, which has not run if only the Python has changed. Empty: this is a first installation.
    known=/run/xpu-container-runtime.units
    # Engines that know CDI devices read it (docs/how-to/cdi.md). One that an operator has removed does not come back.
    # Somebody else's file of that name stays, and is told.
    if [ -e /etc/cdi/yoyoworks.com-xpu.yaml ] || { [ -e $known ] && [ ! -s $known ]; }; then
        timeout 60 /usr/bin/xpu cdi generate > /dev/null || true
    fi
    # Its members may see the slices of this node (docs/concepts/security.md). It outlives the package: files may belong to it.
    if ! getent group xpu > /dev/null && ! groupadd --system xpu; then
        echo "xpu-container-runtime: there is no group xpu, whose members could use xpu ps without being root;" >&2
        echo "  to have it: groupadd --system xpu; systemctl try-restart xpu-agent" >&2
    fi
    # Restart a running agent of an earlier version: containers have their caps meanwhile.
    if [ -d /run/systemd/system ]; then
        # Reload only if units have changed: under systemd's cgroups a reload takes device rules from containers that an
        # earlier version's hook has started.
        if [ -e $known ] &&
            [ "$(cat $known)" != "$(cd /usr/lib/systemd/system && cksum xpu-agent.service xpu-inventory.service)" ]; then
            systemctl daemon-reload || true
        fi
        # Quiet, because systemctl advises a reload for a file with a new time and the same content.
        SYSTEMD_LOG_LEVEL=err systemctl try-restart xpu-agent.service || true
        # Only at a first installation, if a driver was loaded before udev had our rule. Later a stopped service stays
        # stopped.
        if [ -e $known ] && [ ! -s $known ] && { [ -e /sys/module/nvidia ] || [ -e /sys/module/amdgpu ]; }; then
            systemctl start --no-block xpu-inventory.service xpu-agent.service || true
        fi
    fi
    rm -f $known
