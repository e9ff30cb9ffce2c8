package job

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
)

// The file `kubernetes` in a job's folder has the claim that the job was made for and the pods that may use
// it, in one line of JSON. The kubelet plugin writes it. Tenants do not see the folder.

const kubernetesName = "kubernetes"

// MaxPods bounds the pods of a claim that are recorded.
const MaxPods = 32

// Other bounds of the file. The names of MaxPods pods always fit in it.
const (
	maxKubernetes = 16 << 10
	maxContainers = 32
	maxKubeName   = 253 // of an object
)

// Kubernetes is the claim and the pods of a job.
type Kubernetes struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"` // name of the ResourceClaim
	ClaimUID  string `json:"claim_uid"`
	Pods      []Pod  `json:"pods"` // that the claim was reserved for when it was last prepared
}

// Pod is a pod that may use the job.
type Pod struct {
	Name       string   `json:"name"`
	UID        string   `json:"uid"`
	Containers []string `json:"containers,omitempty"` // that use the claim; empty if they are unknown
}

// WriteKubernetes records the claim and the pods of a job. If they are too many for the file, it leaves out
// pods beyond MaxPods, and the containers of the last ones.
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

// ReadKubernetes returns the claim and the pods of one of this user's jobs, or nil.
func ReadKubernetes(name string) *Kubernetes {
	dir, err := safepath.OpenFolder(filepath.Join(Folder(), name))
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	return readKubernetes(dir)
}

// readKubernetes is ReadKubernetes by the descriptor of the job's folder.
func readKubernetes(dir int) *Kubernetes {
	fd, err := safepath.OpenAt(dir, kubernetesName, unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 {
		return nil // users can write such a file into the folders of their own jobs
	}
	return parseKubernetes(readStart(fd, maxKubernetes))
}

// parseKubernetes parses the file, makes it printable and bounds it.
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

func kubeName(s string) string { return cutText(s, maxKubeName) }
