package job

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
)

func TestKubernetes(t *testing.T) {
	testenv.NeedsRoot(t, "such a job is root's")
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	l, err := Create("k8s-1")
	expect.OK(t, err)
	defer l.Release()
	k := ReadKubernetes("k8s-1")
	expect.True(t, k == nil, "a job of no claim has", k)
	want := Kubernetes{Namespace: "team", Claim: "gpu", ClaimUID: "u", Pods: []Pod{{Name: "train", UID: "v", Containers: []string{"main"}}}}
	expect.OK(t, WriteKubernetes(l.Job, want))
	k = ReadKubernetes("k8s-1")
	expect.True(t, k != nil && reflect.DeepEqual(*k, want), k)
	// A claim of more pods than fit, with names as long as they may be, is known all the same.
	many := Kubernetes{Namespace: strings.Repeat("n", 63), Claim: strings.Repeat("c", 253), ClaimUID: strings.Repeat("u", 36)}
	for range 256 {
		many.Pods = append(many.Pods, Pod{Name: strings.Repeat("p", 253), UID: strings.Repeat("u", 36), Containers: slices.Repeat([]string{strings.Repeat("c", 63)}, 40)})
	}
	expect.OK(t, WriteKubernetes(l.Job, many))
	k = ReadKubernetes("k8s-1")
	expect.True(t, k != nil && k.Claim == many.Claim && len(k.Pods) == MaxPods && len(k.Pods[0].Containers) != 0, k)
	// A user's own word is not taken for the operator's.
	expect.OK(t, os.Chown(filepath.Join(l.Folder, kubernetesName), 1000, 1000))
	k = ReadKubernetes("k8s-1")
	expect.True(t, k == nil, "a user wrote", k, "and it is believed")
}

func FuzzParseKubernetes(f *testing.F) {
	f.Add([]byte(`{"namespace":"team","claim":"gpu","pods":[{"name":"a","containers":["b"]}]}`))
	f.Add([]byte(`{"claim":"` + strings.Repeat("x", 1000) + `","pods":[` + strings.TrimSuffix(strings.Repeat(`{"name":"\u001b[2J"},`, 100), ",") + `]}`))
	f.Add([]byte(`{"claim":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		k := parseKubernetes(text)
		if k == nil {
			return
		}
		all := fmt.Sprintf("%+v", k)
		expect.True(t, !strings.ContainsFunc(all, func(r rune) bool { return r < ' ' || r == 0x7f }), all, "is not printable")
		expect.True(t, len(k.Pods) <= MaxPods && len(k.Claim) <= 4*maxKubeName, len(k.Pods), "pods", len(k.Claim), "bytes of a name")
	})
}
