// Command ration gives every CUDA process on a machine its ration of GPU memory,
// and knows to the byte which process holds what.
package main

import (
	"os"

	"ration/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
