"""The NATS user of a process: an nkey whose seed is in a file of mode 600."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import nkeys
from pydantic import SecretStr

from .secrets import SecretFileError, read_secret, write_secret

_USER_SEED = re.compile(r"SU[A-Z2-7]{56}")


@dataclass(frozen=True, slots=True)
class Nkey:
    seed: SecretStr
    public_key: str


def read_nkey(path: Path, *, setting: str) -> Nkey:
    """Read a NATS user's seed from a file. SecretFileError, which names the setting, if it holds none."""
    seed = read_secret(path, setting=setting)
    try:
        # Encoded again and compared, because the library does not verify the checksum.
        if not _USER_SEED.fullmatch(seed) or _seed_of(nkeys.decode_seed(seed.encode())[1]) != seed:
            raise nkeys.ErrInvalidSeed
        return Nkey(SecretStr(seed), _public_key(seed))
    except (nkeys.NkeysError, ValueError):
        # Without its cause, which may show the seed.
        raise SecretFileError(f"{setting}: {path} does not hold the seed of a NATS user (SU…)") from None


def make_nkey(path: Path) -> Nkey:
    """Create a NATS user and write its seed; an existing file is replaced."""
    write_secret(path, _seed_of(os.urandom(32)))
    return read_nkey(path, setting="the new NATS user")


def _seed_of(entropy: bytes) -> str:
    seed: bytes = nkeys.encode_seed(entropy, nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def _public_key(seed: str) -> str:
    pair = nkeys.from_seed(bytearray(seed.encode()))
    public_key: bytes = pair.public_key
    pair.wipe()
    return public_key.decode()
