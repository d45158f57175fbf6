"""How a test of psij is run: with which executor and which launcher."""

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class ExecutorTestParams:
    executor: str
    launcher: Optional[str] = None
    url: Optional[str] = None

    def __str__(self):
        return f"{self.executor}:{self.launcher}"
