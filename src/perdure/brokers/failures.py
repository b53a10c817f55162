"""What is raised when a broker cannot be used, and how it says why."""

import ssl

from perdure.errors import BrokerRefusedError, BrokerUnavailableError

IN_HEADER_MAX = 500  # characters of a reason
UNKNOWN_ISSUER = (18, 19, 20, 21)  # codes of OpenSSL: none of the known CAs has issued the certificate


def text(error: BaseException) -> str:
    """Return the message of an error, or its type if it has none."""
    return str(error) or type(error).__name__


def in_a_header(reason: str) -> str:
    """Return a text, such as an error that quotes a message, as a short line that every broker takes."""
    line = " ".join(reason[: 2 * IN_HEADER_MAX].split()).encode(errors="backslashreplace").decode()
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= IN_HEADER_MAX else f"{line[: IN_HEADER_MAX - 3]}..."


def not_answering(shown: str, error: BaseException) -> BrokerUnavailableError:
    """Return the error of a broker that was connected."""
    return BrokerUnavailableError(f"{shown} does not answer: {text(error)}")


def not_connected(shown: str, error: BaseException) -> BrokerUnavailableError:
    """Return the error of a broker to which no connection can be made."""
    refused = _certificate_error(error)
    if refused is None:
        return BrokerUnavailableError(f"cannot connect to {shown}: {text(error)}")
    unknown = refused.verify_code in UNKNOWN_ISSUER
    remedy = "; if a private CA has issued it, set ca_file to the certificate of the CA" if unknown else ""
    why = refused.verify_message.rstrip(".")
    return BrokerRefusedError(f"cannot connect to {shown}: the certificate is not accepted: {why}{remedy}")


def login_refused(shown: str, error: BaseException) -> BrokerRefusedError:
    """Return the error of a broker that does not accept the user, the password or the lack of them."""
    return BrokerRefusedError(f"{shown} refuses the login: {text(error)}; check the user and the password in the URL")


def not_permitted(shown: str, error: BaseException) -> BrokerRefusedError:
    """Return the error of a broker at which the user may not do what is needed."""
    return BrokerRefusedError(f"{shown} does not permit this to the user of the URL: {text(error)}")


def missing(shown: str, what: str, remedy: str) -> BrokerRefusedError:
    """Return the error of a broker that has no such stream, queue, exchange or topic."""
    return BrokerRefusedError(f"{shown} does not have {what}: {remedy}")


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return what is wrong with the certificate, if that is the cause of an error; causes may form a circle."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None
