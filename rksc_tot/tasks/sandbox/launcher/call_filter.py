"""The seccomp filter: system calls that reach around namespaces and limits fail with EPERM.

| refused | because |
|---|---|
| socket | some families (vsock) are not confined by a network namespace |
| memfd_create, memfd_secret, shmget, msgget, mq_open, add_key, bpf | memory outside the address space of the process |
| io_uring_setup | its operations pass the filter |
| clone with a namespace, unshare, setns, mount, umount2, pivot_root, open_by_handle_at | they lead out of the confinement |
| ptrace, process_vm_readv, process_vm_writev, perf_event_open, userfaultfd, keyctl, request_key | attacks on other processes |

clone3 fails with ENOSYS, so that the C library uses clone, whose flags a filter can read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from .system_calls import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    PR_SET_SECCOMP,
    prctl,
)

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_MACHINES = ("x86_64", "aarch64")
_REFUSED = {
    "socket": (41, 198),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_by_handle_at": (304, 265),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "request_key": (249, 218),
}  # the numbers on x86_64 and aarch64
_CLONE, _CLONE3 = (56, 220), 435
_X32 = 0x40000000  # numbers of the x32 interface begin here
_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
) | CLONE_NEWTIME

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # opcodes of classic BPF
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data

_Instruction = tuple[int, int, int, int]  # opcode, jump if true, jump if false, value


def filter_calls() -> None:
    """Install the filter for this process and its children. It cannot be removed. The process needs no_new_privs."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"seccomp: the numbers of system calls on {machine} are not known")
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _program(machine))
    code = ctypes.create_string_buffer(program, len(program))
    instructions = len(program) // 8
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", instructions, ctypes.addressof(code)))
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(head))


def _program(machine: str) -> list[_Instruction]:
    column = _MACHINES.index(machine)
    refuse = _FAIL | errno.EPERM
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_if(_AT_LEAST, _X32, refuse),
        *_if(_EQUAL, _CLONE3, _FAIL | errno.ENOSYS),
    ]
    for numbers in _REFUSED.values():
        program += _if(_EQUAL, numbers[column], refuse)
    return [
        *program,
        (_EQUAL, 0, 2, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 1, 0, _NAMESPACES),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, refuse),
    ]


def _if(test: int, value: int, action: int) -> list[_Instruction]:
    return [(test, 0, 1, value), (_RETURN, 0, 0, action)]
