"""The data plane of a box without nginx, which answers the control plane's paths too."""

from __future__ import annotations

from sm.control import model_routes, pages, routes
from sm.router.invocation_routes import Router
from sm.server.plane import serve
from sm.server.worker import DataPlane


class DataPlaneWithoutNginx(DataPlane):
    """Workers that have the routes of the control plane, of what it has published."""

    def complete(self, router: Router) -> None:
        router.register_blueprint(routes.blueprint(self.box))
        router.register_blueprint(routes.execution_parameters(self.settings))
        router.register_blueprint(model_routes.listing(self.box))
        router.register_blueprint(pages.blueprint(self.box))
        router.register_blueprint(pages.data_blueprint(pages.control_plane_reader(self.box)))


if __name__ == "__main__":
    serve(DataPlaneWithoutNginx)
