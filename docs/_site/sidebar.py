"""The explorer in the sidebar. It is a page whole in itself, and a toctree takes documents of Sphinx only."""


def setup(app):
    app.connect("html-page-context", add_explorer, priority=900)  # after the theme's
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_explorer(app, page, template, context, doctree):
    """The last one of the first group."""
    uri = context["pathto"]("explorer.html", resource=True)
    item = f'<li class="toctree-l1"><a class="reference internal" href="{uri}">The explorer</a></li>'
    context["furo_navigation_tree"] = context["furo_navigation_tree"].replace("</ul>", f"{item}</ul>", 1)
