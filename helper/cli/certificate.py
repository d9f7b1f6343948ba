"""`lark-helper certificate`: show and renew the TLS certificate that ad servers pin."""

from maskedlark.terminal.certificate_commands import certificate_app as commands_for

certificate_app = commands_for("HELPER_DATA", "HELPER_JSON")
