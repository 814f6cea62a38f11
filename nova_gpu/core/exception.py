# SPDX-License-Identifier: Apache-2.0
"""Errors of nova-gpu, named after what failed.

They know nothing of Nova; the Nova side translates each of them once, at its border. ``args`` are
the constructor's arguments: privsep's daemon sends these, and nova-compute calls the constructor
with them.
"""

from __future__ import annotations

import dataclasses
import enum
import re

from nova_gpu.core import printable

# A PCI address, or the slot of a vGPU on it
_PLACE = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](/[^\s/:;,]+/[0-9]+)?")


def _line(text: str) -> str:
    return printable.printable(text, printable.MOST_OF_A_LINE)


class Cause(enum.StrEnum):
    """What a failed start says something about.

    A tenant's image, flavor or quota causes a failure of the REQUEST, and may cause an UNKNOWN one,
    such as a text of QEMU about a device of the image's properties.
    """

    HOST = "host"
    REQUEST = "request"
    UNKNOWN = "unknown"


class GPUError(Exception):
    """The base class of all errors that this package raises deliberately.

    Its text is one printable line, whatever values it contains, because logs and faults show it.
    ``cause`` tells whether a start that fails of it may page an operator.
    """

    cause = Cause.HOST

    def __str__(self) -> str:
        return _line(super().__str__())


class InvalidValue(GPUError):
    """An option, an extra spec or a command-line argument with a value that cannot be used."""


class InvalidPciAddress(InvalidValue):
    """A text that is not a PCI address."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return (
            f"{self.value!r} is not a PCI address: it must look like 0000:88:00.0 "
            "(domain:bus:slot.function, hexadecimal)"
        )


class InvalidExtraSpec(InvalidValue):
    cause = Cause.REQUEST

    def __init__(self, key: str, value: str, reason: str, allowed: str) -> None:
        super().__init__(f"flavor property {key}={value!r}: {reason}; allowed: {allowed}")
        self.key, self.value, self.reason, self.allowed = key, value, reason, allowed


class InvalidOption(InvalidValue):
    def __init__(
        self, option: str, value: str, reason: str, remedy: str, *, group: str = "gpu"
    ) -> None:
        super().__init__(f"[{group}]{option} = {value!r}: {reason}; {remedy}")
        self.option, self.value, self.reason, self.remedy = option, value, reason, remedy
        self.group = group


class InvalidCDISpec(InvalidValue):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"CDI file {path} is ignored: {reason}")
        self.path, self.reason = path, reason


class InvalidStats(InvalidValue):
    def __init__(self, text: str, reason: str) -> None:
        super().__init__(
            f"a host's report of its GPUs cannot be parsed: {reason}; install the same release of "
            "nova-gpu on that host and here"
        )
        self.text, self.reason = text, reason


class DiscoveryFailed(GPUError):
    def __init__(self, path: str, reason: str) -> None:
        text = f"The host's GPUs cannot be listed: {path}: {reason}; check [gpu]sysfs_root"
        super().__init__(text)
        self.path, self.reason = path, reason


class KernelLogUnreadable(GPUError):
    """A kernel log that cannot be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return _line(
            f"The kernel's log {self.path} cannot be read: {self.reason}; nova-compute misses the "
            "errors of NVIDIA's driver (Xids) until it can"
        )


class AnotherRelease(GPUError):
    """A privileged process of another release than nova-compute."""

    def __init__(self, running: str, installed: str) -> None:
        super().__init__(running, installed)

    def __str__(self) -> str:
        return _line(
            "nova-gpu was upgraded on this host from {} to {}, and nova-compute still runs the "
            "former: restart nova-compute".format(*self.args)
        )


class FileNotOurs(GPUError):
    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was not written by nova-gpu host prepare: its first line differs; rename or "
            "remove it"
        )
        self.path = path


class NotClean(GPUError):
    """A card, or a MIG instance or vGPU of one, that is not clean after its last guest."""

    def __init__(self, address: str, reason: str, remedy: str) -> None:
        super().__init__(address, reason, remedy)
        self.address, self.reason, self.remedy = address, reason, remedy

    def __str__(self) -> str:
        return _line(f"GPU {self.address} is not clean: {self.reason}; {self.remedy}")


class NotCleanedYet(NotClean):
    """A card that a driver or process keeps from being clean; a later attempt may succeed."""


class NotRepaired(GPUError):
    def __init__(self, uuid: str, reason: str) -> None:
        super().__init__(f"Not repaired {uuid}: {reason}")
        self.uuid, self.reason = uuid, reason


class PlacementFailed(GPUError):
    def __init__(self, url: str, reason: str, verb: str = "GET") -> None:
        super().__init__(f"Placement gave no usable answer to {verb} {url}: {reason}")
        self.url, self.reason = url, reason


class GuestError(GPUError):
    """A failed start of a guest with GPUs on this host.

    ``address`` is the card that caused it, ``None`` if no single card did. ``reason`` is what
    failed and ``remedy`` what the operator can do. ``others`` names instances or processes of the
    host that are involved, such as another tenant's instance: the log shows them, :attr:`user_text`
    does not. ``host`` is the name of this host, ``None`` until the error is converted into one of
    Nova's. ``for_user`` replaces ``remedy`` in the user's text where only the operator can apply
    the remedy.
    """

    host: str | None = None
    for_user: str | None = None
    _begin = "GPU {address} cannot be given: "

    def __init__(
        self, address: str | None, reason: str, remedy: str, others: str | None = None
    ) -> None:
        super().__init__(address, reason, remedy, others)
        self.address, self.reason, self.remedy, self.others = address, reason, remedy, others

    @property
    def fact(self) -> str:
        """The reason, with the instances or processes involved, for operators."""
        return f"{self.reason}: {self.others}" if self.others else self.reason

    def __str__(self) -> str:
        """Return the text for the operator's log."""
        begin = self._begin.format(address=self.address) if self.address else self._anonymous
        text = f"{begin}{self.fact}; {self.remedy}"
        return _line(f"on {self.host}: {text}" if self.host else text)

    @property
    def user_text(self) -> str:
        """The text for the instance's user, without the host and the device."""
        remedy = self.for_user or self.remedy
        return _line(_PLACE.sub("a device", f"{self._anonymous}{self.reason}; {remedy}"))

    @property
    def _anonymous(self) -> str:
        return self._begin.replace("GPU {address}", "a GPU")


class RequestMismatch(GuestError):
    """An instance whose GPUs or vGPUs do not match its flavor."""

    cause = Cause.REQUEST
    _begin = ""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(None, reason, remedy)
        self.args = (reason, remedy)


class GuestUnfit(GuestError):
    """A guest that cannot take the GPUs with its image and flavor."""

    cause = Cause.REQUEST
    _begin = "the guest cannot take its GPUs: "

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(None, reason, remedy)
        self.args = (reason, remedy)


class GuestCannotStart(GuestError):
    """A guest that cannot start on this host now, but may start on another one."""


class DeviceUnavailable(GuestCannotStart):
    """A start that needs a device which is missing, faulty or another guest's.

    Without an address the fault is the host's.
    """


class UnknownFailure(DeviceUnavailable):
    """A start that failed with an error of libvirt or QEMU of which nova-gpu knows no cause."""

    cause = Cause.UNKNOWN


# The client recognises the error by this text.
GAVE_BACK = "the instance gave its GPUs back"


class NoneFree(GuestCannotStart):
    """A start of an instance that gave its GPUs back when it stopped, and cannot get new ones."""

    cause = Cause.REQUEST
    _begin = f"{GAVE_BACK}, and gets none now: "

    def __init__(self, reason: str, remedy: str, others: str | None = None) -> None:
        super().__init__(None, reason, remedy, others)
        self.args = (reason, remedy, others)


# A fault that begins so after Nova's own words stays; the client recognises it, and does not retry.
FINAL = "waiting will not help: "
# The client recognises the error by this text.
QUOTA_REFUSES = "quota refuses the instance its GPUs"


class QuotaExceeded(GuestError):
    """A new, resized or unshelved instance that quota does not allow its GPUs."""

    cause = Cause.REQUEST
    _begin = f"{QUOTA_REFUSES}: "

    def __init__(self, reason: str, remedy: str, others: str | None = None) -> None:
        super().__init__(None, reason, remedy, others)
        self.args = (reason, remedy, others)


class OverQuota(NoneFree):
    """A start of an instance that gave its GPUs back, and that quota does not allow new ones."""

    _begin = "the instance has no GPUs while it is stopped, and quota refuses it new ones: "


class NotCounted(GuestCannotStart):
    """A start of an instance for which Placement refuses to count what it has."""

    _begin = "the instance cannot start: "

    def __init__(self) -> None:
        super().__init__(
            None,
            "Placement does not count what it has, and refuses to",
            "free VCPUs, memory or disk of its host for it, or move it away (nova-gpu verify)",
        )
        self.args = ()


class DomainsUnreadable(GuestCannotStart):
    _begin = "Cannot tell which guest has which GPU, so no instance gets one: "

    def __init__(self, error: str) -> None:
        reason = "libvirt does not list its domains"
        super().__init__(None, reason, "check libvirtd on the host", error)
        self.args = (error,)


class ProvidersUnknown(GuestCannotStart):
    _begin = "Cannot tell which GPUs the instance has on this host: "

    def __init__(self, error: str) -> None:
        reason = "Placement does not answer"
        remedy = "reboot the instance hard when Placement answers again"
        super().__init__(None, reason, remedy, error)
        self.args = (error,)


class BindingFailed(GuestCannotStart):
    _begin = "GPU {address} was not bound: "


class CardInUse(BindingFailed):
    """A card that was not bound, because a process such as a guest's QEMU has it open."""


class BetterElsewhere(GuestCannotStart):
    """A start on a host without fault, while another host fits better."""

    cause = Cause.REQUEST
    _begin = ""


class DeviceNodeMissing(GuestCannotStart):
    def __init__(self, address: str, path: str, remedy: str) -> None:
        super().__init__(address, f"it has no device node {path}", remedy)
        self.args, self.path = (address, path, remedy), path


class GuestFilesUnavailable(GuestCannotStart):
    _begin = "The driver's files for guests cannot be gathered: "

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            None,
            f"{path}: {reason}",
            "make that folder writable for nova-compute, with room for one copy of the driver",
        )
        self.args, self.path = (path, reason), path


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """The reason why no host can give the requested GPUs, in two versions.

    ``log_text`` is for operators. ``user_text`` leaves out how many GPUs exist and how many are in
    use. Each is one printable line, whatever an image's properties put into it. ``is_final``: the
    reason stays when GPUs become free, so a repeated request is refused as well.
    """

    log_text: str
    user_text: str
    is_final: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_text", _line(self.log_text))
        object.__setattr__(self, "user_text", _line(self.user_text))

    @classmethod
    def of_both(cls, text: str, *, is_final: bool = False) -> Reason:
        """Return a reason with the same *text* for operators and users.

        The text must not name hosts or other instances, nor say how many GPUs the cloud has or how
        many are in use. It may list what GPUs exist (models, architectures, memory), and say the
        most that one host or guest has.
        """
        return cls(text, text, is_final)

    @property
    def fault(self) -> str:
        """The text for the user. If the reason is final, it begins with :data:`FINAL`."""
        return f"{FINAL * self.is_final}{self.user_text}"
