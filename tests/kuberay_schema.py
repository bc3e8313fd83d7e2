"""What KubeRay and the Prometheus operator take, as JSON Schema: our own short statement of their fields, unknown ones refused.

Kubernetes drops a field of a custom resource that its definition does not have, and says nothing, so a misspelt one must be found
here. Theirs are a megabyte, nearly all of it Kubernetes' own pods once for each group; those come from `kubernetes_validate` here.
Fields: ray.io/v1 of KubeRay 1.6, from its API reference; monitoring.coreos.com/v1 of the Prometheus operator, as far as we use it.
"""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jsonschema
from referencing import Registry, Resource

# The oldest that has all we use as it is here (unhealthyPodEvictionPolicy), and the newest that there is.
VERSIONS = ("1.31.0", "1.37.0")

Schema = dict[str, Any]
TEXT, NUMBER, YES_NO = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def kubernetes(name: str) -> Schema:
    return {"$ref": f"https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.{name}"}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(*required: str, **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


POD = kubernetes("api.core.v1.PodTemplateSpec")
SERVICE = kubernetes("api.core.v1.Service")
CREDENTIAL = record(value=TEXT, valueFrom=kubernetes("api.core.v1.EnvVarSource"))
SECRET_KEY = kubernetes("api.core.v1.SecretKeySelector")

RAY_CLUSTER = record(
    "headGroupSpec",
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    authOptions=record(mode=one_of("disabled", "token"), secretName=TEXT),
    suspend=YES_NO,
    managedBy=TEXT,
    upgradeStrategy=record(type=one_of("Recreate", "None")),
    enableInTreeAutoscaling=YES_NO,
    autoscalerOptions=record(
        resources=kubernetes("api.core.v1.ResourceRequirements"),
        image=TEXT,
        imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
        securityContext=kubernetes("api.core.v1.SecurityContext"),
        idleTimeoutSeconds=COUNT,
        upscalingMode=one_of("Default", "Aggressive", "Conservative"),
        version=one_of("v1", "v2"),
        env=many(kubernetes("api.core.v1.EnvVar")),
        envFrom=many(kubernetes("api.core.v1.EnvFromSource")),
        volumeMounts=many(kubernetes("api.core.v1.VolumeMount")),
    ),
    headServiceAnnotations=TEXTS,
    gcsFaultToleranceOptions=record(
        redisAddress=TEXT, redisUsername=CREDENTIAL, redisPassword=CREDENTIAL, externalStorageNamespace=TEXT
    ),
    headGroupSpec=record(
        "template",
        template=POD,
        rayStartParams=TEXTS,
        headService=SERVICE,
        enableIngress=YES_NO,
        serviceType=one_of("ClusterIP", "NodePort", "LoadBalancer"),
    ),
    workerGroupSpecs=many(
        record(
            "groupName",
            "template",
            "minReplicas",
            "maxReplicas",
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            numOfHosts=COUNT,
            suspend=YES_NO,
            rayStartParams=TEXTS,
            template=POD,
            scaleStrategy=record(workersToDelete=many(TEXT)),
        )
    ),
)
RAY_SERVICE = record(
    serveConfigV2=TEXT,
    rayClusterConfig=RAY_CLUSTER,
    rayClusterDeletionDelaySeconds=COUNT,
    upgradeStrategy=record(type=one_of("NewCluster", "NewClusterWithIncrementalUpgrade", "None")),
    serveService=SERVICE,
    excludeHeadPodFromServeSvc=YES_NO,
)
RAY_JOB = record(
    entrypoint=TEXT,
    runtimeEnvYAML=TEXT,
    jobId=TEXT,
    metadata=TEXTS,
    clusterSelector=TEXTS,
    rayClusterSpec=RAY_CLUSTER,
    submitterPodTemplate=POD,
    submitterConfig=record(backoffLimit=COUNT),
    submissionMode=one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    entrypointNumCpus={"type": "number"},
    entrypointNumGpus={"type": "number"},
    entrypointResources=TEXT,
    activeDeadlineSeconds=COUNT,
    backoffLimit=COUNT,
    ttlSecondsAfterFinished=COUNT,
    shutdownAfterJobFinishes=YES_NO,
    suspend=YES_NO,
    managedBy=TEXT,
)
# One of the two is where it runs.
RAY_JOB["oneOf"] = [{"required": ["clusterSelector"]}, {"required": ["rayClusterSpec"]}]

SELECTOR = kubernetes("apimachinery.pkg.apis.meta.v1.LabelSelector")
POD_MONITOR = record(
    "selector",
    "podMetricsEndpoints",
    selector=SELECTOR,
    namespaceSelector=record(any=YES_NO, matchNames=many(TEXT)),
    jobLabel=TEXT,
    podTargetLabels=many(TEXT),
    podMetricsEndpoints=many(
        record(
            port=TEXT,
            path=TEXT,
            scheme=one_of("http", "https"),
            interval={"type": "string", "pattern": r"^\d+(ms|s|m)$"},
            scrapeTimeout={"type": "string", "pattern": r"^\d+(ms|s|m)$"},
            honorLabels=YES_NO,
            authorization=record(type=TEXT, credentials=SECRET_KEY),
            relabelings=many(record(sourceLabels=many(TEXT), regex=TEXT, targetLabel=TEXT, replacement=TEXT, action=TEXT)),
        )
    ),
)
RULE = record("expr", alert=TEXT, record=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS, **{"for": TEXT, "keep_firing_for": TEXT})
PROMETHEUS_RULE = record(groups=many(record("name", "rules", name=TEXT, interval=TEXT, rules=many(RULE))))

CUSTOM: dict[tuple[str, str], Schema] = {
    ("ray.io/v1", "RayCluster"): RAY_CLUSTER,
    ("ray.io/v1", "RayService"): RAY_SERVICE,
    ("ray.io/v1", "RayJob"): RAY_JOB,
    ("monitoring.coreos.com/v1", "PodMonitor"): POD_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): PROMETHEUS_RULE,
}


@lru_cache
def definitions(version: str) -> dict[str, Any]:
    """Kubernetes' own kinds, unknown fields refused."""
    folder = files("kubernetes_validate") / f"kubernetes-json-schema/v{version}-local-strict"
    return json.loads((folder / "_definitions.json").read_text())


@lru_cache
def kinds(version: str) -> dict[tuple[str, str], str]:
    """(apiVersion, kind) -> the name of its definition."""
    found = {}
    for name, schema in definitions(version)["$defs"].items():
        for of in schema.get("x-kubernetes-group-version-kind", ()):
            found["/".join(filter(None, (of["group"], of["version"]))), of["kind"]] = name
    return found


def problems(manifest: dict[str, Any], version: str) -> list[str]:
    """What is wrong with a manifest, each with its place; raises KeyError for a kind that neither Kubernetes nor we know."""
    kind = manifest["apiVersion"], manifest["kind"]
    if kind in CUSTOM:
        metadata = kubernetes("apimachinery.pkg.apis.meta.v1.ObjectMeta")
        schema = record("metadata", "spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=CUSTOM[kind])
    else:
        schema = kubernetes(kinds(version)[kind].removeprefix("io.k8s."))
    resource = Resource.from_contents(definitions(version))
    validator = jsonschema.Draft202012Validator(schema, registry=resource @ Registry())
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(manifest)]
