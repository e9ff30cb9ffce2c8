//go:build !faultpoints

package region

import "ration/internal/abi"

// point marks a place where a test build can die. Here it is nothing.
func point(abi.Failpoint) {}
