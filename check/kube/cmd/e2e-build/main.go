// Command e2e-build builds the parts of Kubernetes that the tests start, into a cache.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"ration/check/kube/binaries"
)

func main() {
	check := flag.Bool("check", false, "build nothing: say what is missing, and exit with status 1 if anything is")
	node := flag.Bool("node", false, "those of a node too: kubelet, containerd and runc")
	flag.Parse()
	names := binaries.ControlPlane
	if *node {
		names = append(names, binaries.Node...)
	}
	if err := run(names, *check); err != nil {
		fmt.Fprintln(os.Stderr, "e2e-build:", err)
		os.Exit(1)
	}
}

func run(names []string, check bool) error {
	missing, takes, err := binaries.Missing(names)
	if err != nil || len(missing) == 0 {
		return err
	}
	said := fmt.Sprintf("%s: not built yet (about %.0f minutes on two idle cores)", strings.Join(missing, ", "), takes.Minutes())
	if check {
		return fmt.Errorf("%s", said)
	}
	fmt.Println(said)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return binaries.Build(ctx, os.Stdout, missing)
}
