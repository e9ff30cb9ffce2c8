//go:build !(amd64 || arm64) || race

package region

import "sync/atomic"

// storeRelease stores v so that a process that loads it also sees everything that was stored
// before. sync/atomic guarantees more than that; the race detector understands it.
func storeRelease(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
