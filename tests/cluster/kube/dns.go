package main

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/net/dns/dnsmessage"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	maxQueryBytes = 512 // RFC 1035, section 4.2.1
	ttlSeconds    = 1
)

// resolver answers A questions as Kubernetes' DNS specification asks for: Services, endpoints of headless Services, and
// hostnames among these. It knows no SRV, no PTR, no other domain. CoreDNS does, but raises the versions of packages
// that all other programs share, and so compiles everything anew.
type resolver struct {
	suffix   string // ".svc.DOMAIN."
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

func buildDNSCommand() *cobra.Command {
	var listen, kubeconfig, domain string
	command := &cobra.Command{
		Use: "dns",
		RunE: func(command *cobra.Command, _ []string) error {
			own, err := startResolver(kubeconfig, domain)
			if err != nil {
				return err
			}
			return own.serve(listen)
		},
	}
	command.Flags().StringVar(&listen, "listen", "127.0.0.1:53", "HOST:PORT for questions over UDP")
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "file that names the API server")
	command.Flags().StringVar(&domain, "domain", "cluster.local", "the cluster's domain")
	return command
}

func startResolver(kubeconfig, domain string) (*resolver, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	own := &resolver{
		suffix:   ".svc." + domain + ".",
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
	}
	never := context.Background().Done()
	factory.Start(never)
	factory.WaitForCacheSync(never)
	return own, nil
}

func (own *resolver) serve(listen string) error {
	socket, err := net.ListenPacket("udp", listen)
	if err != nil {
		return err
	}
	query := make([]byte, maxQueryBytes)
	for {
		size, client, err := socket.ReadFrom(query)
		if err != nil {
			return err
		}
		if response, err := own.respond(query[:size]); err == nil {
			_, _ = socket.WriteTo(response, client) // a client that has left asks again
		}
	}
}

// respond builds the response to one query. A query that cannot be parsed gets none.
func (own *resolver) respond(query []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		return nil, err
	}
	if len(message.Questions) != 1 || message.Response {
		return nil, errors.New("not one question")
	}
	question := message.Questions[0]
	addresses, exists := own.resolve(strings.ToLower(question.Name.String()))
	response := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: message.ID, Response: true, Authoritative: true,
			RecursionDesired: message.RecursionDesired, RecursionAvailable: true,
		},
		Questions: message.Questions,
	}
	if !exists {
		response.RCode = dnsmessage.RCodeNameError
	}
	if question.Type == dnsmessage.TypeA {
		response.Answers = buildAnswers(question, addresses)
	}
	return response.Pack()
}

func buildAnswers(question dnsmessage.Question, addresses []string) []dnsmessage.Resource {
	var answers []dnsmessage.Resource
	for _, address := range addresses {
		ip := net.ParseIP(address).To4()
		if ip == nil {
			continue
		}
		answers = append(answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: ttlSeconds},
			Body:   &dnsmessage.AResource{A: [4]byte(ip)},
		})
	}
	return answers
}

// resolve returns the addresses of [HOSTNAME.]SERVICE.NAMESPACE.svc.DOMAIN. and whether that name exists.
func (own *resolver) resolve(name string) ([]string, bool) {
	inner, isOurs := strings.CutSuffix(name, own.suffix)
	parts := strings.Split(inner, ".")
	var hostname string
	if len(parts) == 3 {
		hostname, parts = parts[0], parts[1:]
	}
	if !isOurs || len(parts) != 2 {
		return nil, false
	}
	service, err := own.services.Services(parts[1]).Get(parts[0])
	if err != nil {
		return nil, false
	}
	if service.Spec.ClusterIP != core.ClusterIPNone {
		return []string{service.Spec.ClusterIP}, hostname == ""
	}
	addresses := own.listEndpoints(service, hostname)
	return addresses, hostname == "" || len(addresses) > 0
}

func (own *resolver) listEndpoints(service *core.Service, hostname string) []string {
	selector := labels.Set{discovery.LabelServiceName: service.Name}.AsSelector()
	slices, err := own.slices.EndpointSlices(service.Namespace).List(selector)
	if err != nil {
		return nil
	}
	var addresses []string
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			isReady := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			isNamed := hostname == "" || endpoint.Hostname != nil && *endpoint.Hostname == hostname
			if isNamed && (isReady || service.Spec.PublishNotReadyAddresses) {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	return addresses
}
