// Command etcd is etcd, whose own main package is in a module that finds its parts
// in its folder and so cannot be built from the module proxy.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
