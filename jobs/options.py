"""The arguments of `DurableShuffle` that Spark's configuration gives: `spark.durableShuffle.*`.

An argument of the call counts before the configuration, so `spark-submit --conf` sets defaults.
Names are those of the arguments in Spark's spelling: `onConflict` for `on_conflict`. Fields of
`Settings` have the prefix `settings.`. Credentials do not belong here: the configuration is shown
in Spark's UI.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.identity.jvm.calls import entries, printed
from durable_shuffle.jobs.in_one_call import in_one_call
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings

PREFIX = "spark.durableShuffle."
_NAMED_RETENTIONS = ("until_released", "when_consumed")
_DURATION = re.compile(r"(\d+) ?(s|min|h|d)")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


def configured(spark: SparkSession) -> dict[str, str]:
    """Return argument name -> value, for all that the session's configuration gives.

    Raises:
        InvalidInputError: a key that no argument has.
    """
    names = known_keys()
    found = {key: text for key, text in _all(spark).items() if key.startswith(PREFIX)}
    unknown = sorted(found.keys() - names.keys())
    if unknown:
        raise InvalidInputError(
            f"{', '.join(unknown)} is not a setting; the settings are {', '.join(sorted(names))}"
        )
    return {names[key]: text for key, text in found.items()}


def known_keys() -> dict[str, str]:
    """Return key of the configuration -> argument name, for all keys that there are."""
    known = [*("url", "job", "version", "reuse", "on_conflict", "lost_records"), "retention"]
    known += ["rows_in", "at_risk", *(f"settings.{field.name}" for field in fields(Settings))]
    return {PREFIX + _spelled(name): name for name in known}


def _all(spark: SparkSession) -> dict[str, str]:
    """Return the configuration of a session with one call."""
    if is_connect(spark):
        return {key: str(value) for key, value in spark.conf.getAll.items()}

    def every(_: Any, session: Any) -> Any:
        return printed(session.conf().getAll())

    return entries(in_one_call(classes_of(spark), every, spark._jsparkSession), " -> ")  # noqa: SLF001


def settings_from(texts: Mapping[str, str]) -> Settings:
    """Return the settings that the configuration gives.

    Raises:
        InvalidInputError: a value of the wrong type or out of its range.
    """
    values: dict[str, Any] = {}
    for field in fields(Settings):
        text = texts.get(f"settings.{field.name}")
        if text is not None:
            values[field.name] = _value(field.name, text, type(field.default))
    return Settings(**values)


def retention_from(text: str) -> timedelta | str:
    """Return a retention: "7 d", "12 h", "until_released" or "when_consumed".

    Raises:
        InvalidInputError: another text.
    """
    if text in _NAMED_RETENTIONS:
        return text
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidInputError(
            f"{PREFIX}retention must be a time such as '7 d' or '12 h', or one of "
            f"{', '.join(_NAMED_RETENTIONS)}, found={text!r}"
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _value(name: str, text: str, kind: type) -> object:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return text if kind in (str, type(None)) else kind(text)
    except (KeyError, ValueError) as error:
        raise InvalidInputError(
            f"{PREFIX}settings.{_spelled(name)} must be of type {kind.__name__}, found={text!r}"
        ) from error


def _spelled(name: str) -> str:
    """Return a name as Spark spells it: `on_conflict` as `onConflict`."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)
