package node

import (
	"os"
	"path/filepath"
)

// networkText is the network of pods. Without one the kubelet does not report the node as ready.
const networkText = `{"cniVersion": "1.0.0", "name": "pairs", "plugins": [{"type": "pair"}]}
`

// pairText is the network's plugin, which containerd executes for each pod that is not in the node's network: a pair of
// interfaces, one in the pod and one in the node. They go with the pod.
const pairText = `#!/bin/sh
set -eu
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
ADD)
	exec 9>>"$0.pods"
	flock 9
	echo "$CNI_CONTAINERID" >>"$0.pods"
	number=$(grep -c . "$0.pods")
	pod=${CNI_NETNS##*/} own=10.99.1.$number
	{
		ip link add "pod$number" type veth peer name "$CNI_IFNAME" netns "$pod"
		ip link set "pod$number" up
		ip route add "$own" dev "pod$number" src ` + Address + `
		ip -n "$pod" addr add "$own/32" dev "$CNI_IFNAME"
		ip -n "$pod" link set "$CNI_IFNAME" up
		ip -n "$pod" route add ` + Address + ` dev "$CNI_IFNAME"
		ip -n "$pod" route add default via ` + Address + `
	} >&2
	echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'"$CNI_IFNAME"'", "sandbox": "'"$CNI_NETNS"'"}],' \
		'"ips": [{"address": "'"$own"'/32", "interface": 0, "gateway": "` + Address + `"}]}'
	;;
esac
`

// writeNetwork writes the network of pods where containerd looks for it.
func writeNetwork() error {
	if err := os.MkdirAll(cniFolder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(cniFolder, "pair"), []byte(pairText), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(cniFolder, "pairs.conflist"), []byte(networkText), 0o644)
}
