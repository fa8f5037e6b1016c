// kube is every program of a one-node Kubernetes cluster in one binary: linked once, because they share most packages.
//
//	kube PROGRAM [FLAG...]
//
// It owns the choice of the program. Each program's flags are its own and reach it unchanged.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are built on demand: to build a command already registers metrics.
var programs = map[string]func() *cobra.Command{
	"dns":                     buildDNSCommand,
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              func() *cobra.Command { return proxy.NewProxyCommand() },
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 {
		exitWithUsage()
	}
	program, flags := os.Args[1], os.Args[2:]
	if program == "etcd" { // parses os.Args by itself and never returns
		etcdmain.Main(append([]string{program}, flags...))
	}
	build, isKnown := programs[program]
	if !isKnown {
		exitWithUsage()
	}
	os.Args = append([]string{program}, flags...) // kubectl reads plug-ins and completions from here
	command := build()
	command.SetArgs(flags)
	os.Exit(cli.Run(command))
}

func exitWithUsage() {
	names := []string{"etcd"}
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: kube %s [FLAG...]\n", strings.Join(names, "|"))
	os.Exit(2)
}
