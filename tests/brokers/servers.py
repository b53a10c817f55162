"""Throwaway message brokers on loopback, for tests; see `perdure.testing.servers`."""

import shutil
import signal
import socket
import ssl
import sys
from pathlib import Path

from perdure.testing.servers import HOST, Server, ServerError
from tests.brokers.certificates import Certificate


def program(name: str, package: str) -> Path:
    """Return the path of a program; raise `ServerError` if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/usr/lib/rabbitmq/bin")
    if found is None:
        raise ServerError(f"{name} was not found: install the package {package} (Debian: apt-get install {package})")
    return Path(found)


class BrokerServer(Server):
    """Run a broker: one that anybody on this machine may use, or with TLS and a password."""

    _stop_signal = signal.SIGTERM

    def __init__(self, certificate: Certificate | None = None, password: str = "") -> None:
        super().__init__()
        self.password = password
        self._certificate = certificate

    def _certificate_options(self, chain: str, key: str) -> dict[str, str | Path]:
        """Return two options and their values, or nothing without TLS."""
        if self._certificate is None:
            return {}
        found = self._certificate
        return {chain: self._write("chain.pem", found.chain), key: self._write("key.pem", found.key)}

    def _connected(self) -> socket.socket:
        connection = socket.create_connection((HOST, self.port), timeout=5)
        if self._certificate is None:
            return connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(connection)


class NATSServer(BrokerServer):
    """Run NATS with JetStream."""

    _accounts = ("nats", "nobody")

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def _command(self) -> list[str | Path]:
        options: list[str | Path] = ["-a", HOST, "-p", str(self.port), *self._storage()]
        for option in self._certificate_options("--tlscert", "--tlskey").items():
            options += ["--tls", *option]
        if self.password:
            options += ["--user", "perdure", "--pass", self.password]
        return [program("nats-server", "nats-server"), *options]

    def _storage(self) -> list[str]:
        return ["-js", "-sd", f"{self.home}/data"]

    def _answers(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            return connection.recv(5) == b"INFO "  # TLS follows


class RestrictedNATSServer(NATSServer):
    """Run NATS with two users: `limited` may publish to `permitted.*` only, and `unanswered` gets no answers.

    Without a user, everything is permitted.
    """

    def _command(self) -> list[str | Path]:
        allowed = 'publish: {allow: ["permitted.*"]}, subscribe: {allow: ["_INBOX.>"]}'
        users = [
            "{user: any, password: any}",
            f"{{user: limited, password: limited, permissions: {{{allowed}}}}}",
            '{user: unanswered, password: unanswered, permissions: {subscribe: {deny: [">"]}}}',
        ]
        config = f"authorization: {{users: [{', '.join(users)}]}}\nno_auth_user: any\n"
        return [*super()._command(), "-c", self._write("nats.conf", config)]


class BareNATSServer(NATSServer):
    """Run NATS without JetStream."""

    def _storage(self) -> list[str]:
        return []


class RedisServer(BrokerServer):
    """Run Redis without persistence."""

    _accounts = ("redis", "nobody")

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def _command(self) -> list[str | Path]:
        options: list[str | Path] = ["--bind", HOST, "--save", "", "--dir", f"{self.home}/data"]
        if found := self._certificate_options("--tls-cert-file", "--tls-key-file"):
            options += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            options += [text for option in found.items() for text in option]
        else:
            options += ["--port", str(self.port)]
        if self.password:
            options += ["--requirepass", self.password]
        return [program("redis-server", "redis-server"), *options]

    def _answers(self) -> bool:
        with self._connected() as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) in (b"+PONG", b"-NOAU")


class RabbitMQServer(BrokerServer):
    """Run RabbitMQ. Its start takes some seconds of processor time, so tests prefer one that runs already."""

    _accounts = ("rabbitmq", "nobody")

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    def _config(self) -> str:
        settings: dict[str, object] = {"listeners.tcp.1": f"{HOST}:{self.port}"}
        if found := self._certificate_options("ssl_options.certfile", "ssl_options.keyfile"):
            settings = {"listeners.tcp": "none", "listeners.ssl.1": f"{HOST}:{self.port}", **found}
        if self.password:
            settings |= {"default_user": "perdure", "default_pass": self.password}
        return "".join(f"{name} = {value}\n" for name, value in settings.items())

    def _command(self) -> list[str | Path]:
        script = program("rabbitmq-server", "rabbitmq-server")
        plain = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # Debian's wrapper changes the user itself
        config = self._write("rabbitmq.conf", self._config())
        settings = {
            "RABBITMQ_CONFIG_FILE": config,
            "HOME": f"{self.home}/data",
            "RABBITMQ_NODENAME": f"perdure-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": 61_000 + self.port % 4_500,  # above Linux's ephemeral ports
            "RABBITMQ_MNESIA_BASE": f"{self.home}/data",
            "RABBITMQ_LOG_BASE": f"{self.home}/data",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self.home}/data/plugins",
            "RABBITMQ_CONF_ENV_FILE": f"{self.home}/data/none",
            "RABBITMQ_ALLOW_INPUT": "1",  # the script then becomes the server, instead of its parent
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
        }
        assignments = [f"{name}={value}" for name, value in settings.items()]
        return [program("env", "coreutils"), *assignments, plain if plain.exists() else script]

    def _answers(self) -> bool:
        with self._connected() as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"  # the first method of the server


class KafkaServer(Server):
    """Run the mock cluster of librdkafka: a real implementation of Kafka's protocol that keeps everything in memory."""

    _accounts = ()  # the interpreter may be readable for us only
    _stop_signal = signal.SIGKILL  # it keeps no data

    # By the library that confluent_kafka brings, which has no name in Python for the last setting: how long a new group
    # waits for more members. Every test has groups of its own, and the default is three seconds.
    PROGRAM = """
import confluent_kafka, ctypes, time
with open("/proc/self/maps") as maps:
    library = ctypes.CDLL(next(line.split()[-1] for line in maps if "librdkafka" in line))
for name in "rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new":
    getattr(library, name).restype = ctypes.c_void_p
library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
settings = ctypes.c_void_p(library.rd_kafka_conf_new())
library.rd_kafka_conf_set(settings, b"log_level", b"0", None, ctypes.c_size_t(0))
producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, None, ctypes.c_size_t(0)))
cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(producer, 1))
library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 50)
print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode().rpartition(":")[2], flush=True)
time.sleep(1e9)
"""

    @property
    def url(self) -> str:
        return f"kafka://{HOST}:{self._broker_port}"

    @property
    def _broker_port(self) -> int:
        lines = (self.home / "log").read_text().split()
        return int(lines[-1]) if lines and lines[-1].isdigit() else 0

    def _command(self) -> list[str | Path]:
        return [Path(sys.executable), "-I", "-c", self.PROGRAM]

    def _answers(self) -> bool:
        return bool(self._broker_port)
