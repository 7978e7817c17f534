"""The part of a broker's settings that is about replication: ``ha*`` of ``MessageStoreConfig``.

Keys of ours: ``haAllowedSlaves``, ``haAclEnable``, ``haTlsMode``, ``haCutMaxSize`` and
``haBeginAnew``.
"""

from __future__ import annotations

from dataclasses import field

from kerolox.broker.dialling import DialSettings
from kerolox.errors import ConfigError
from kerolox.role_settings import DISABLED, ENFORCING, LATER, PERMISSIVE
from kerolox.security.access.accounts import Addresses
from kerolox.security.access.addresses import parse_address_lists
from kerolox.security.tls import Tls
from kerolox.settings_class import settings_dataclass

_INT: dict[str, object] = {"max": (1 << 31) - 1}


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class HaSettings(DialSettings):
    """Settings of masters and slaves. Times are milliseconds, sizes bytes."""

    ha_listen_port: int = field(default=0, metadata={"min": 0, "max": 65535})
    """Where a master's slaves connect; 0: listenPort + 1, which RocketMQ always takes. Beside a
    guarded main port it stays closed unless it is named, or guarded as well."""
    ha_master_address: str = ""
    """``host:port`` where a slave's master sends its log; empty: as a name server says."""
    ha_allowed_slaves: str = field(default="", metadata={"bytes": 16 * 1024})
    """Who may connect: addresses as white lists of accounts have them, joined by ``;``. Empty:
    anybody."""
    ha_acl_enable: bool = False
    """A master wants the account of an administrator from slaves, which Java's can't show; a slave
    has it in ``namesrvCredentialsFile``."""
    ha_tls_mode: str = field(
        default=DISABLED, metadata={"choices": (DISABLED, PERMISSIVE, ENFORCING)}
    )
    """TLS of that port, with the certificate of the main one. A slave speaks it unless disabled, as
    its ``tls.client.*`` say; a master takes both when permissive, TLS only when enforcing."""
    ha_send_heartbeat_interval: int = field(default=5_000, metadata=LATER | {"min": 10} | _INT)
    ha_housekeeping_interval: int = field(default=20_000, metadata=LATER | {"min": 20} | _INT)
    """A connection whose other end is silent for so long is closed."""
    ha_transfer_batch_size: int = field(
        default=32 * 1024, metadata=LATER | {"min": 1_024, "max": 4 * 1024 * 1024 - 12}
    )
    """Most bytes of the log in one frame; a Java slave has space for 4 MiB with its head."""
    ha_slave_fallbehind_max: int = field(default=256 << 20, metadata=LATER | {"min": 0} | _INT)
    """A SYNC_MASTER does not wait for slaves that are further behind."""
    slave_timeout: int = field(default=3_000, metadata=LATER | {"min": 1} | _INT)
    """How long a SYNC_MASTER waits for a slave."""
    slave_read_enable: bool = field(default=False, metadata=LATER)
    """Slaves are read from, and slow readers are sent to them."""
    offset_check_in_slave: bool = field(default=False, metadata=LATER)
    """A slave corrects offsets outside its queues; else it sends readers to the master."""

    ha_cut_max_size: int = field(default=256 << 20, metadata=LATER | {"min": 0})
    """Most bytes that a slave cuts off its log and keeps aside, where its master has others or
    none; with more it stops. 0: it cuts nothing."""
    ha_begin_anew: bool = field(default=False, metadata=LATER)
    """A slave that can't go on with its log, since its master has deleted what comes next or has
    another one, puts it aside as a whole and begins with an empty one."""

    def tls_to_master(self) -> Tls:
        """How a slave speaks to its master's port; no file is examined."""
        return False if self.ha_tls_mode == DISABLED else self.tls_dialled()

    @property
    def ha_allowed(self) -> tuple[Addresses, ...]:
        """The lists of ``haAllowedSlaves``; none: anybody."""
        try:
            return parse_address_lists(self.ha_allowed_slaves)
        except ValueError as error:
            raise ConfigError(f"haAllowedSlaves: {error}") from None
