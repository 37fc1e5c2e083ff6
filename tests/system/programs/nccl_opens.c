/* What NCCL 2.21 does about its network, without GPUs: it opens a plugin, takes the newest interface that it knows, asks
   for devices, and ends with an error if NCCL_NET names another network. Prints the file and the network, and writes
   NCCL's lines to NCCL_DEBUG_FILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct net {
  const char *name;
  int (*init)(void *);
  int (*devices)(int *);
};

int ncclGetVersion(int *version) {
  *version = 22105;
  return puts("NCCL version 2.21.5+cuda12.4") < 0;
}

/* A line of the log, as NCCL writes it. */
static void note(const char *level, const char *format, const char *word, int number) {
  static FILE *file;
  const char *name = getenv("NCCL_DEBUG_FILE");
  char path[4096] = "", host[256] = "";
  size_t used = 0;
  gethostname(host, sizeof host - 1);
  for (; name && *name && !file && used < 3000; name++) {
    if (*name == '%' && name[1] == 'h') used += (size_t)sprintf(path + used, "%s", host), name++;
    else if (*name == '%' && name[1] == 'p') used += (size_t)sprintf(path + used, "%d", getpid()), name++;
    else path[used++] = *name;
  }
  if (!file && *path) file = fopen(path, "w");
  if (!file) return;
  fprintf(file, "%s:%d:%d [0] NCCL %s ", host, getpid(), getpid(), level);
  fprintf(file, format, word, number);
  fputs("\n", file);
  fflush(file);
}

static void *opened(void) {
  const char *wish = getenv("NCCL_NET_PLUGIN");
  return dlopen(wish && *wish ? wish : "libnccl-net.so", RTLD_NOW | RTLD_LOCAL);
}

int ncclCommInitRank(void) {
  static const char *const known[] = {"ncclNetPlugin_v8", "ncclNetPlugin_v7", "ncclNetPlugin_v6", "ncclNetPlugin_v5"};
  struct net socket = {"Socket", NULL, NULL}, *net = NULL;
  const char *wish = getenv("NCCL_NET"), *symbol = "";
  struct link_map *map = NULL;
  int devices = 0;
  void *plugin = opened();
  if (!plugin) {
    const char *why = dlerror();
    printf("NET/Plugin: %s\n", why);
    note("INFO", "NET/Plugin: libnccl-net.so: %s", why, 0);
  }
  for (int i = 0; plugin && !net && i < 4; i++) net = dlsym(plugin, symbol = known[i]);
  if (net) note("INFO", "NET/Plugin: Loaded net plugin %s (v%d)", net->name, atoi(strrchr(symbol, 'v') + 1));
  if (net && (net->init(NULL) || net->devices(&devices) || !devices)) net = NULL;
  if (wish && strcasecmp(wish, net ? net->name : socket.name)) {
    printf("NCCL WARN Error: network %s not found.\n", wish);
    note("WARN", "Error: network %s not found.", wish, 0);
    return 5;
  }
  if (net && !dlinfo(plugin, RTLD_DI_LINKMAP, &map)) printf("loaded %s by %s\n", map->l_name, symbol);
  printf("Using network %s\n", (net ? net : &socket)->name);
  fflush(stdout);
  note("INFO", "Using network %s", (net ? net : &socket)->name, 0);
  note("INFO", "%sncclCommInitRank comm 0x1 rank 0 nranks %d - Init COMPLETE", "", 2);
  return 0;
}
