"""What the chart is rendered with: every profile, and values that reach the templates that no profile reaches."""
import pathlib

import yaml

from chart import CHART

PROFILES = {path.stem: path for path in sorted((CHART / "profiles").glob("*.yaml"))}


def profile(name):
    return yaml.safe_load(PROFILES[name].read_text())


def demo(**values):
    """A model on CPUs."""
    return {"name": "demo", "source": {"inImage": {"path": "/models/demo"}}, **values}


def copied(**volume):
    return {"init": {"image": "busybox:1.37", "command": ["cp", "-r", "/from/.", "$(REIN_WEIGHTS)"], "revision": "r1", "volume": volume}}


TRIAL = {"etcd": {"trial": True}}
GPUS = {"engine": "cuda", "devices": [0, 1], "ranks": 4, "podsPerGroup": 2, "resources": {"limits": {"memory": "64Gi"}}}
PROMETHEUS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
TLS = {"enabled": True, "secretName": "given"}

VARIANTS = {
    "no-model": TRIAL,
    "one-of-each": {**TRIAL, "router": {"replicas": 1}, "controller": {"replicas": 1}, "networkPolicy": {"enabled": False}, "models": [demo()]},
    "ipv6": {**TRIAL, "ipFamily": "IPv6", "models": [demo(groups=2)]},
    "hub": {
        **TRIAL,
        "models": [
            {"name": "pinned", "source": {"hub": {"model": "acme/Small-1", "revision": "0123abc", "token": {"secretName": "hub"}, "volume": {"hostPath": {"path": "/var/lib/rein"}}}}},
            {"name": "mirror", "source": {"hub": {"model": "acme/b", "endpoint": "http://mirror:8080", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
                                                  "resources": {"limits": {"memory": "1Gi"}}, "volume": {"pvc": {"claimName": "models"}}}}},
            {"name": "own", "source": {"hub": {"model": "acme/c", "token": {"secretName": "hub", "secretKey": "hf"}, "volume": {"claimTemplate": {"size": "9Gi"}}}}},
            {"name": "short", "source": {"hub": {"model": "acme/d", "volume": {"emptyDir": {"sizeLimit": "9Gi"}}}}},
        ],
    },
    "front-of-a-hub-model": {"front": {"engines": ["vllm=http://vllm:8000"], "model": {"hub": {"model": "acme/Small-1", "token": {"secretName": "hub"}}}}},
    "names": {
        **TRIAL,
        "fullnameOverride": "llm",
        "nameOverride": "serving",
        "cluster": "shared",
        "serviceAccountName": "serving",
        "podLabels": {"team": "models"},
        "podAnnotations": {"example.com/note": "yes"},
        "image": {"repository": "registry.example:5000/rein", "digest": "sha256:" + "0" * 64, "pullSecrets": ["pull"]},
        "models": [demo(servedName="acme/Demo-1", env=[{"name": "RUST_BACKTRACE", "value": "1"}], priorityClassName="high")],
        "tracing": {"otlpEndpoint": "http://collector:4317", "share": 0.25},
        "log": {"level": "warn,rein_router=debug", "format": "text"},
    },
    "tls-from-secrets": {
        "etcd": {"endpoints": ["https://etcd.data:2379"], "tls": {"secretName": "etcd-client", "serverName": "etcd"}, "auth": {"user": "rein", "secretName": "etcd-user"}},
        "peerTls": {**TLS, "dnsName": "other-peer"},
        "publicTls": TLS,
        "apiKeys": {"secretName": "keys"},
        "ingress": {"enabled": True, "className": "nginx", "hosts": ["llm.example.com"], "tlsSecretName": "web"},
        "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "proxy"}}}], "prometheus": PROMETHEUS},
        "monitoring": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "verify": {"apiKeySecretName": "verify-key", "model": "demo"},
        "router": {"options": {"max-in-flight": 2048, "responses-store": "off", "allow-control-tokens": True}, "service": {"type": "LoadBalancer", "annotations": {"a": "b"}}},
        "controller": {"options": {"rebalance-every": 120}},
        "models": [demo(spares=1, options={"max-context": 1048576, "no-prefix-cache": False, "threads": 2})],
    },
    "certificates": {**TRIAL, "publicTls": {"enabled": True, "certManager": {"issuerRef": {"name": "public", "kind": "ClusterIssuer"}, "duration": "2160h"}, "dnsNames": ["llm.example.com"]}, "models": [demo()]},
    "groups-of-pods": {**TRIAL, "models": [{"name": "pair", "source": {"hostPath": {"path": "/models/pair"}}, **GPUS, "groups": 3, "spares": 2, "updateGroups": 1, "hostNetwork": True, "shm": "4Gi"}]},
    "leader-worker-sets": {
        **TRIAL,
        "networkPolicy": {"prometheus": PROMETHEUS},
        "models": [
            {"name": "pair", "source": copied(emptyDir={"sizeLimit": "10Gi"}), **GPUS, "groups": 2, "workload": "lws"},
            {"name": "trio", "source": copied(hostPath={"path": "/var/lib/models"}), "podsPerGroup": 3, "ranks": 3, "workload": "lws", "autoscaling": {"type": "keda", "minReplicas": 0, "maxReplicas": 4, "prometheus": "http://prometheus:9090"}},
        ],
    },
    "spares-of-leader-worker-sets": {**TRIAL, "models": [{"name": "pair", "source": {"pvc": {"claimName": "weights"}}, **GPUS, "workload": "lws", "spares": 1}]},
    "claims": {
        **TRIAL,
        "models": [
            demo(engine="cuda", devices=[0, 1], ranks=2, resources={"limits": {"memory": "16Gi"}}, readOnlyRootFilesystem=False, resourceClaims=[{"name": "gpus", "deviceClassName": "gpu.nvidia.com", "count": 2, "selectors": ["device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"]}]),
            demo(name="given", engine="cuda", devices=[0], resources={"limits": {"memory": "16Gi"}}, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]),
        ],
    },
    "autoscaling": {
        **TRIAL,
        "router": {"autoscaling": {"enabled": True}},
        "models": [
            demo(autoscaling={"type": "hpa", "maxReplicas": 4}, groups=2),
            demo(name="asleep", servedName="asleep-model", autoscaling={"type": "keda", "minReplicas": 0, "maxReplicas": 2, "prometheus": "https://thanos.example/api", "metricLabels": {"cluster": "a"}}),
        ],
    },
    "engines-with-certificates": {
        "front": {
            "engines": ["vllm=https://vllm:8443#events=5557", "llama-server=https://llama:8443"],
            "model": {"hostPath": {"path": "/models/m"}},
            "apiKey": {"secretName": "engine-key"},
            "ca": {"secretName": "engine-ca", "secretKey": "root.pem"},
        },
    },
    "copies": {**TRIAL, "models": [demo(source=copied(claimTemplate={"size": "10Gi"}))]},
    "blue-green": {
        **TRIAL,
        "models": [demo()],
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "weight": 90, "otherBackends": [{"name": "green-rein-router", "weight": 10}]},
        "grpcRoute": {"enabled": True, "parentRefs": [{"name": "public", "sectionName": "grpc"}]},
        "monitoring": {"dashboard": {"enabled": True}, "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "runbooks": "https://docs.example/rein"}},
    },
}

CASES = {**PROFILES, **VARIANTS}
