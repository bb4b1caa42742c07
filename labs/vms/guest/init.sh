#!/bin/busybox sh
# The init of a guest: mounts, network, control groups. Then it keeps the guest's services running, and nothing else.
export PATH=/bin:/usr/bin HOME=/tmp LANG=C.UTF-8
export PYTHONPATH=/opt/parley PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=0755 tmpfs /var
mkdir -p /var/tmp /var/log
groups=/sys/fs/cgroup
mount -t cgroup2 cgroup2 $groups

hostname guest
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2

for controller in cpu memory pids io; do
  echo "+$controller" > $groups/cgroup.subtree_control || echo "parley: there is no control of $controller"
done
mkdir $groups/workload $groups/informant $groups/limited
# The kernel patches its scheduler's code when the first limit of CPU time comes and when the last one goes. Emulated vCPUs can miss that, and
# then all of them stay in one place for ever. So there is always one, of a group without processes, set while there is one vCPU.
echo "100000 100000" > $groups/limited/cpu.max

has_word() { grep -qw "$1" /proc/cmdline; }

# keep GROUP OOM_SCORE_ADJ COMMAND...: run a command in a control group, and again whenever it has ended, for whatever reason.
keep() {
  local group=$1 adjustment=$2
  shift 2
  while :; do
    (
      mkdir -p "$groups/$group" # it may have been removed
      echo 0 > "$groups/$group/cgroup.procs" # 0: the process that writes
      echo "$adjustment" > /proc/self/oom_score_adj
      exec "$@"
    )
    echo "parley: $1 ended with code $?"
    sleep 0.2
  done
}

echo -1000 > /proc/self/oom_score_adj # of the loops, which must outlive a shortage of memory
if has_word parley.workload=1; then
  keep workload 0 python3 -P -m labs.vms.workload < /dev/null &
fi
if has_word parley.shell=1; then
  # No echo, no prompt, no editing: whoever is at the other end sends a command a line.
  stty -F /dev/ttyS1 raw -echo
  keep . 0 sh -c 'while read -r line; do eval "$line"; done' < /dev/ttyS1 > /dev/ttyS1 2>&1 &
fi
settings=informant
has_word parley.quick=1 && settings=quick
# The informant would be killable for the seconds of its imports if it began with 0. It logs for programs: to a pipe, not a terminal.
keep informant -1000 python3 -P -m informant --host 0.0.0.0 --plain-http --cgroup workload --config /etc/parley/$settings.yaml 2>&1 < /dev/null | cat
