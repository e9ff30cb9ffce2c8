package node

import (
	"errors"
	"fmt"
	stdslices "slices"

	"ration/internal/job"
	"ration/kube/claim"
)

// Container is a container of a pod that uses a claim.
type Container struct {
	Name     string
	Requests []string // requests of the claim that it names; nil for all of them
}

// ErrTwoRations is returned for a container that would be in two rations. The container engine would
// mount the job of one over that of the other, and only one would count.
var ErrTwoRations = errors.New("a container can be in one ration")

// withContainers returns a plan with the containers of its pods: those that the record has, and the
// answer of Containers for the others. It returns ErrTwoRations if one of them uses two rations of
// the claim, and an error if the containers of a pod are unknown: they could.
func (n *Node) withContainers(p claim.Plan) (claim.Plan, error) {
	if n.Containers == nil {
		return p, nil
	}
	known := map[string][]string{}
	if r, err := n.read(p.UID); err == nil {
		for _, pod := range r.Plan.Pods {
			known[pod.UID] = pod.Containers
		}
	}
	var unknown []claim.Pod
	p.Pods = stdslices.Clone(p.Pods)
	for i, pod := range p.Pods {
		if p.Pods[i].Containers = known[pod.UID]; len(known[pod.UID]) == 0 {
			unknown = append(unknown, pod)
		}
	}
	if len(unknown) == 0 {
		return p, nil
	}
	found, err := n.Containers(p.Namespace, p.Name, unknown)
	if err != nil {
		return p, fmt.Errorf("finding the containers of claim %s/%s: %w", p.Namespace, p.Name, err)
	}
	for i, pod := range p.Pods {
		for _, c := range found[pod.UID] {
			if rations := rationsOf(p, c); rations > 1 {
				return p, fmt.Errorf("container %s of pod %s uses %d requests of claim %s, and with sharing: Request each is a ration of its own: %w "+
					"(name one request in the container, or leave out sharing: Request)", c.Name, pod.Name, rations, p.Name, ErrTwoRations)
			}
			p.Pods[i].Containers = append(p.Pods[i].Containers, c.Name)
		}
	}
	return p, nil
}

// rationsOf returns how many rations of a claim a container uses.
func rationsOf(p claim.Plan, c Container) (count int) {
	for _, r := range p.Rations {
		if r.Request == "" || c.Requests == nil || stdslices.Contains(c.Requests, r.Request) {
			count++
		}
	}
	return count
}

// kubernetes returns the pods and the claim that the records of the claim's jobs name.
func kubernetes(p claim.Plan) job.Kubernetes {
	k := job.Kubernetes{Namespace: p.Namespace, Claim: p.Name, ClaimUID: p.UID, Pods: []job.Pod{}}
	for _, pod := range p.Pods {
		k.Pods = append(k.Pods, job.Pod{Name: pod.Name, UID: pod.UID, Containers: pod.Containers})
	}
	return k
}

// checkContainers returns an error if a container of a claim has another claim of this driver.
func checkContainers(p claim.Plan, others []*Record) error {
	for _, own := range p.Pods {
		for _, r := range others {
			for _, pod := range r.Plan.Pods {
				if pod.UID != own.UID {
					continue
				}
				for _, name := range pod.Containers {
					if stdslices.Contains(own.Containers, name) {
						return fmt.Errorf("claims %s and %s are both for container %s of pod %s: %w (use two requests of one claim)",
							r.Plan.Name, p.Name, name, pod.Name, ErrTwoRations)
					}
				}
			}
		}
	}
	return nil
}
