package job

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
	"ration/internal/termtext"
)

// The file `kubernetes` in a job's folder says which claim of Kubernetes the job was made for, and
// which pods may use it, in one line of JSON. The kubelet plugin writes it, in one step. Tenants
// do not see the folder, so what it says is the operator's word.

const kubernetesName = "kubernetes"

// MaxPods is how many pods of a claim are written down.
const MaxPods = 32

// Other bounds of the file, and of what is taken from it. The pods' names fit in it always.
const (
	maxKubernetes = 16 << 10
	maxContainers = 32
	maxKubeName   = 253 // of an object
)

// Kubernetes is what a job is in a cluster.
type Kubernetes struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"` // name of the ResourceClaim
	ClaimUID  string `json:"claim_uid"`
	Pods      []Pod  `json:"pods"` // for which the claim was reserved when it was last prepared
}

// Pod is a pod that may use the job.
type Pod struct {
	Name       string   `json:"name"`
	UID        string   `json:"uid"`
	Containers []string `json:"containers,omitempty"` // that use the claim; empty where that is not known
}

// WriteKubernetes writes what a job is in a cluster: of a claim with many pods, or with many containers, a part. What does not fit
// would not be read.
func WriteKubernetes(j Job, k Kubernetes) error {
	k.Pods = slices.Clone(k.Pods[:min(len(k.Pods), MaxPods)])
	line, err := json.Marshal(k)
	for i := len(k.Pods) - 1; err == nil && i >= 0 && len(line) >= maxKubernetes; i-- {
		k.Pods[i].Containers = nil
		line, err = json.Marshal(k)
	}
	if err != nil {
		return err
	}
	if err := safepath.Replace(filepath.Join(filepath.Dir(j.Path), kubernetesName), append(line, '\n'), 0o644); err != nil {
		return fmt.Errorf("recording the pods of job %s: %w", j.Name, err)
	}
	return nil
}

// ReadKubernetes reads what one of this user's jobs is in a cluster; nil where it is nothing.
func ReadKubernetes(name string) *Kubernetes {
	dir, err := safepath.OpenFolder(filepath.Join(Folder(), name))
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	return readKubernetes(dir)
}

// readKubernetes reads it, by the descriptor of the job's folder; nil where there is none.
func readKubernetes(dir int) *Kubernetes {
	fd, err := safepath.OpenAt(dir, kubernetesName, unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), kubernetesName)
	defer file.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 {
		return nil // a user can write one into the folder of a job of his own
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKubernetes))
	if err != nil {
		return nil
	}
	return parseKubernetes(text)
}

// parseKubernetes makes what the file says printable, and not too long.
func parseKubernetes(text []byte) *Kubernetes {
	var k Kubernetes
	if json.Unmarshal(text, &k) != nil || k.Claim == "" {
		return nil
	}
	k.Namespace, k.Claim, k.ClaimUID = kubeName(k.Namespace), kubeName(k.Claim), kubeName(k.ClaimUID)
	k.Pods = k.Pods[:min(len(k.Pods), MaxPods)]
	for i := range k.Pods {
		p := &k.Pods[i]
		p.Name, p.UID = kubeName(p.Name), kubeName(p.UID)
		p.Containers = p.Containers[:min(len(p.Containers), maxContainers)]
		for n := range p.Containers {
			p.Containers[n] = kubeName(p.Containers[n])
		}
	}
	return &k
}

func kubeName(s string) string { return termtext.Printable(s[:min(len(s), maxKubeName)]) }
