package job

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestKubernetes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("such a job is root's")
	}
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	l, err := Create("k8s-1")
	must(t, err)
	defer l.Release()
	if k := ReadKubernetes("k8s-1"); k != nil {
		t.Errorf("a job of no claim has %+v", k)
	}
	want := Kubernetes{Namespace: "team", Claim: "gpu", ClaimUID: "u", Pods: []Pod{{Name: "train", UID: "v", Containers: []string{"main"}}}}
	must(t, WriteKubernetes(l.Job, want))
	if k := ReadKubernetes("k8s-1"); k == nil || !reflect.DeepEqual(*k, want) {
		t.Errorf("got %+v", k)
	}
	// A claim of more pods than fit, with names as long as they may be, is known all the same.
	many := Kubernetes{Namespace: strings.Repeat("n", 63), Claim: strings.Repeat("c", 253), ClaimUID: strings.Repeat("u", 36)}
	for range 256 {
		many.Pods = append(many.Pods, Pod{Name: strings.Repeat("p", 253), UID: strings.Repeat("u", 36), Containers: slices.Repeat([]string{strings.Repeat("c", 63)}, 40)})
	}
	must(t, WriteKubernetes(l.Job, many))
	if k := ReadKubernetes("k8s-1"); k == nil || k.Claim != many.Claim || len(k.Pods) != MaxPods || len(k.Pods[0].Containers) == 0 {
		t.Errorf("got %+v", k)
	}
	// A user's own word is not taken for the operator's.
	must(t, os.Chown(filepath.Join(l.Folder, kubernetesName), 1000, 1000))
	if k := ReadKubernetes("k8s-1"); k != nil {
		t.Errorf("a user wrote %+v, and it is believed", k)
	}
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
		if all := fmt.Sprintf("%+v", k); strings.ContainsFunc(all, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("%q is not printable", all)
		}
		if len(k.Pods) > MaxPods || len(k.Claim) > 4*maxKubeName {
			t.Errorf("%d pods, %d bytes of a name", len(k.Pods), len(k.Claim))
		}
	})
}
