# SPDX-License-Identifier: Apache-2.0
# One of the cluster's own MachineSets -> one of GPU machines, as a set of its own: README.md has the commands.
#
#   --arg pool POOL     training or inference: the pool's name, in the set's name, the nodes' label and their taint
#   --arg machine KIND  the cloud's word for the kind of machine
#   --arg gpus N        how many GPUs such a machine has
#
# All that the cloud needs (image, subnet, credentials) stays as that set has it.

if .kind != "MachineSet" then error("this is a \(.kind // "text"), not one MachineSet: name one") else . end
| .spec.template.spec.taints as $taints
| if ($taints // []) | length > 0 then error("\(.metadata.name) has taints: copy a set of plain workers") else . end
| .metadata.labels["machine.openshift.io/cluster-api-cluster"] as $cluster
| "\($cluster)-gpu-\($pool)" as $name
| {"machine.openshift.io/cluster-api-machineset": $name} as $ours
# Where each cloud has the kind of machine: AWS, Google, Azure, OpenStack.
| .spec.template.spec.providerSpec.value as $cloud
| ([("instanceType", "machineType", "vmSize", "flavor") | select(in($cloud))] | first) as $key
| if $key then . else error("providerSpec names no kind of machine: write the GPUs into it by hand") end
| {
    apiVersion,
    kind,
    metadata: {
      name: $name,
      namespace: .metadata.namespace,
      labels: .metadata.labels,
      # The cloud's controller writes vCPU and memoryMb, by which the autoscaler knows a machine that is not there yet.
      annotations: {"machine.openshift.io/GPU": $gpus}
    },
    spec: (.spec + {replicas: 0})
  }
| .spec.selector.matchLabels += $ours
| .spec.template.metadata.labels += $ours + {
    "machine.openshift.io/cluster-api-machine-role": "gpu",
    "machine.openshift.io/cluster-api-machine-type": "gpu"
  }
| .spec.template.spec.metadata.labels += {
    "node-role.kubernetes.io/worker": "",
    # A node cannot give itself a label of this prefix.
    "node-restriction.kubernetes.io/gpu-pool": $pool,
    # The autoscaler then knows that the node is not ready before kubelet says nvidia.com/gpu, and adds no second one for
    # the same pod meanwhile.  autoscaler.yaml has the same word as the GPU's type.
    "cluster-api/accelerator": "nvidia-gpu"
  }
# From the node's first moment: only pods that tolerate it come here.
| .spec.template.spec.taints = [{key: "nvidia.com/gpu", value: $pool, effect: "NoSchedule"}]
| .spec.template.spec.providerSpec.value[$key] = $machine
