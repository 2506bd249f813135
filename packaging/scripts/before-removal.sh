    # Every container has its cap from then on.
    if [ -d /run/systemd/system ]; then
        # A reload takes device rules from containers that an earlier version's hook has started, and nothing here needs one.
        systemctl disable --now --no-reload xpu-agent.service || true
    fi
    # Takes the runtime out of the engines' configuration, says which containers hold slices, and writes down into
    # /run/xpu/callers who calls the runtime as long as it runs. Nothing that goes wrong here keeps the package.
    if ! timeout 60 /usr/bin/xpu runtime retire; then
        echo "xpu-container-runtime: cannot tell who uses it; if an engine names the runtime xpu in its configuration" >&2
        echo "  (/etc/docker/daemon.json, /etc/containerd/config.toml), take it out there" >&2
        # Then all that could call it count.
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
    # For those (after-removal.sh): without what lies beside it, it refuses who asks for an accelerator.
    ln -f /usr/bin/xpu-container-runtime /usr/bin/xpu-container-runtime.kept || true
    rm -f /usr/lib/xpu-container-runtime/python/start.bundle
    find /usr/lib/xpu-container-runtime -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
