"""What to plug, switch and eject next; computes only.

`machine` holds what QEMU shows, `state` what the guest shows and all that is known of one VM. `happened` brings the state forward, `plan` says
what to do next, `cpus` and `memory` which step; `told` says what others are told of the VM.
"""
