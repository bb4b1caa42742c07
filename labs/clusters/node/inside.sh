#!/bin/sh
# The node's own view of the machine. Runs as the first process of new mount and PID namespaces: with its end, by whatever signal,
# kubelet, containerd, shims and containers end, and every mount is gone. Arguments: directory, kubelet, kubeconfig, node name.
set -eu
directory=$1 kubelet=$2 kubeconfig=$3 name=$4
cd "$directory"

# What containerd, CNI and the kubelet write outside their directories, whatever they are told.
for place in /var/log/containers /var/lib/kubelet /var/lib/cni /run/containerd /run/netns; do
  mkdir -p "$place"
  mount -t tmpfs tmpfs "$place"
done

# The kubelet and the bridge set the machine's sysctls. They set copies.
mkdir -p sysctl
for sysctl in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes \
  net/ipv4/ip_forward; do
  copy=sysctl/$(echo "$sysctl" | tr / _)
  cat "/proc/sys/$sysctl" > "$copy"
  mount --bind "$copy" "/proc/sys/$sysctl"
done

containerd --config containerd.toml > logs/containerd.log 2>&1 &
until ctr --address containerd.sock version > /dev/null 2>&1; do sleep 0.02; done
for image in images/*.tar; do
  ctr --address containerd.sock --namespace k8s.io images import "$image" > /dev/null
done

# A kubelet that is killed starts again, as systemd would start it.
while :; do
  "$kubelet" --config kubelet.json --kubeconfig "$kubeconfig" --root-dir "$directory/kubelet" --cert-dir "$directory/kubelet-pki" \
    --hostname-override "$name" -v 2 >> logs/kubelet.log 2>&1 || sleep 0.1
done
