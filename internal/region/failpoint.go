//go:build !faultpoints

package region

import "ration/internal/abi"

// point marks a place where a test build can be killed. In this build it does nothing.
func point(abi.Failpoint) {}
