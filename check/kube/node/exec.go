package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"ration/check/kube/cluster"
)

var execs atomic.Int64

// Exec runs a program in a container of a pod, past the kubelet, and returns what it wrote and its exit status.
func Exec(ctx context.Context, pod *corev1.Pod, container string, command ...string) (out string, code int, err error) {
	ctr, err := cluster.Program("ctr")
	if err != nil {
		return "", 0, err
	}
	id := ""
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container {
			id = strings.TrimPrefix(s.ContainerID, "containerd://")
		}
	}
	if id == "" {
		return "", 0, fmt.Errorf("pod %s has no container %s that was started", pod.Name, container)
	}
	args := []string{"-a", containerdSocket, "-n", "k8s.io", "tasks", "exec", "--exec-id", fmt.Sprintf("e%d", execs.Add(1)), id}
	cmd := exec.CommandContext(ctx, ctr, append(args, command...)...)
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return both.String(), exit.ExitCode(), nil
	}
	return both.String(), 0, err
}
