// Command ration limits the GPU memory and time of CUDA programs, and counts to the byte how much
// each process holds.
package main

import (
	"os"

	"ration/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
