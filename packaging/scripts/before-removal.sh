    # Without the agent every container has just its cap.
    if [ -d /run/systemd/system ]; then
        # No reload: it takes device rules from containers that an earlier version's hook has started.
        systemctl disable --now --no-reload xpu-agent.service || true
    fi
    # Takes the runtime out of the engines' configuration, names the containers with slices, and writes the processes that
    # will call the runtime to /run/xpu/callers. No error here stops the removal.
    if ! timeout 60 /usr/bin/xpu runtime retire; then
        echo "xpu-container-runtime: cannot tell who uses it; if an engine names the runtime xpu in its configuration" >&2
        echo "  (/etc/docker/daemon.json, /etc/containerd/config.toml), take it out there" >&2
        # By our CDI file engines would call a hook that is gone. Another program's file, or installation's, stays.
        cdi=/etc/cdi/yoyoworks.com-xpu.yaml
        if grep -qs '^# Written by .xpu cdi generate.' $cdi && grep -qs '"/usr/bin/xpu-container-runtime-hook"' $cdi; then
            rm -f $cdi || true
            rmdir /etc/cdi 2>/dev/null || true
        fi
        # Then every process that could call it counts.
        mkdir -p /run/xpu || true
        for process in /proc/[0-9]*; do
            case $(cat "$process/comm" 2>/dev/null) in
                dockerd | containerd | containerd-shim* | conmon | crio)
                    # The 22nd field of stat; the second is a name in brackets.
                    began=$(sed 's/.*) //' "$process/stat" 2>/dev/null | cut -d ' ' -f 20)
                    echo "${process#/proc/} $began $(cat "$process/comm") (process ${process#/proc/})" >> /run/xpu/callers || true ;;
            esac
        done
    fi
    # For these callers (after-removal.sh): without its modules the program refuses containers that ask for an accelerator.
    ln -f /usr/bin/xpu-container-runtime /usr/bin/xpu-container-runtime.kept || true
    rm -f /usr/lib/xpu-container-runtime/python/start.bundle
    find /usr/lib/xpu-container-runtime -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
