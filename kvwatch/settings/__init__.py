"""The settings: one model, read from flags, environment and a file. Nothing else in kvwatch reads those."""

from kvwatch.settings.loading import SettingsError, load
from kvwatch.settings.provenance import show
from kvwatch.settings.settings_model import Settings
from kvwatch.settings.sources import debugging
from kvwatch.settings.target_settings import AlertmanagerSettings, ServerSettings, TargetSettings

__all__ = [
    "AlertmanagerSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "TargetSettings",
    "debugging",
    "load",
    "show",
]
