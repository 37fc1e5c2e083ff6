"""``python3 -m fairlead.notebook.server --config=FILE``: JupyterLab, which leaves its token in no further file."""

from __future__ import annotations


def main() -> None:
    from jupyter_server.serverapp import ServerApp
    from jupyterlab.labapp import main as lab

    # A page with the token, for browsers that it would start itself; no setting turns that off.
    ServerApp.write_browser_open_files = lambda self: None
    lab()


if __name__ == "__main__":
    main()
