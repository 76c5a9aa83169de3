"""A cluster with a network namespace per process, so that the link between any two can be cut."""
import os
import subprocess

from fleet import Fleet

BRIDGE = "reinbr0"
NET = "10.213.77"


def ip(*arguments, check=True):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert not check or done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done


class Networks(Fleet):
    """Like Fleet; clients are on the bridge. Process number n has the address NET.(n + 10)."""

    def __init__(self, directory, workers, group_size, **options):
        self.numbers = {}
        self.teardown()
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NET}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        super().__init__(directory, workers, group_size, **options)

    def address(self, name):
        return f"{NET}.{self.numbers[name] + 10}"

    def namespace(self, name):
        if name in self.numbers:
            return
        n = self.numbers[name] = len(self.numbers)
        ip("netns", "add", f"rein{n}")
        ip("link", "add", f"reinv{n}", "type", "veth", "peer", "name", "eth0", "netns", f"rein{n}")
        ip("link", "set", f"reinv{n}", "master", BRIDGE, "up")
        for command in (["addr", "add", f"{self.address(name)}/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
            ip("-n", f"rein{n}", *command)

    def spawn(self, name, command, **environment):
        self.namespace(name)
        if name == "etcd":
            here = self.address(name)
            command = [part.replace("127.0.0.1", here) for part in command]
            self.etcd_url = self.etcd_url.replace("127.0.0.1", here)
            self.peer_url = self.peer_url.replace("127.0.0.1", here)
        elif command[1] == "worker":
            command = [*command, "--listen", f"{self.address(name)}:7000"]
        else:
            command = [part.replace("127.0.0.1", self.address(name)) for part in command]
        super().spawn(name, ["ip", "netns", "exec", f"rein{self.numbers[name]}", *command], **environment)

    def host(self, router):
        return self.address(router)

    def cut(self, a, b):
        """Drops all packets between the two, without an error for either."""
        for here, there in ((a, b), (b, a)):
            ip("-n", f"rein{self.numbers[here]}", "route", "add", "blackhole", f"{self.address(there)}/32")

    def mend(self, a, b):
        for here, there in ((a, b), (b, a)):
            ip("-n", f"rein{self.numbers[here]}", "route", "del", "blackhole", f"{self.address(there)}/32")

    def close(self):
        super().close()
        self.teardown()

    @staticmethod
    def teardown():
        for n in range(32):
            ip("netns", "del", f"rein{n}", check=False)
            # It would be deleted with its namespace, but later.
            ip("link", "del", f"reinv{n}", check=False)
        ip("link", "del", BRIDGE, check=False)


def possible():
    return os.geteuid() == 0 and ip("netns", "list", check=False).returncode == 0

